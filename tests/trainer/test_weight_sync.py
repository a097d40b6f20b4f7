"""Weights to a folder and to a vLLM server in memory: there and proven, or not there."""

import subprocess
import sys
import time

import httpx
import numpy as np
import pytest
import torch

from tests.trainer.fake_vllm import FakeVllm
from tests.trainer.toys import toy_model
from trainer.policy.serving_copy import write_serving_copy
from trainer.rollouts.held_weights import load_in_place
from trainer.rollouts.vllm_client import VllmError, split
from trainer.weights.checkpoint import BrokenCheckpoint
from trainer.weights.digest import weights_digest
from trainer.weights.proof import marked, own_logprobs, probe_gap
from trainer.weights.sync import (
    FolderSync,
    ServerSettings,
    VllmSync,
    WeightSyncFailed,
    asked_of,
    by_files,
    version_folder,
)
from trainer.weights.transfer import NcclTransfer, ServerControl, parameters_of

SETTINGS = ServerSettings(deadline_s=5.0)


def sync_of(server, folder, settings=SETTINGS):
    return VllmSync(server.client(), settings, "vllm-files", by_files(folder))


def test_new_weights_are_proven_by_the_log_probabilities_of_a_probe_before_and_after(tmp_path):
    server, new = FakeVllm(), toy_model(seed=9)
    before = probe_gap(asked_of(server.client(), SETTINGS), new)
    synced = sync_of(server, tmp_path / "shm").sync(new, 3, "d")
    assert before > 0.1 > synced.probe_gap and synced.probe_gap < 1e-4
    assert torch.equal(server.model.lm_head.weight, new.lm_head.weight)
    assert (split(server.label)[0], server.is_paused, synced.target) == (3, False, "http://fake:1")
    assert not (tmp_path / "shm").exists()


BROUGHT = ["/pause", "label proving", "/collective_rpc", "/reset_prefix_cache", "/resume", "/v1/completions"]


def orders(server):
    """What was asked of a server, its labels spelled out."""
    return [
        f"label {body['new_version'].partition('/')[0]}" if path == "/update_weight_version" else path
        for path, body in server.asked
        if path not in ("/v1/models", "/server_info", "/weight_info")
    ]


def test_a_version_is_labelled_only_when_the_probe_has_proven_it_and_the_way_is_proven_once(tmp_path):
    server = FakeVllm()
    sync = sync_of(server, tmp_path / "shm")
    sync.sync(toy_model(seed=9), 3, "d")
    assert orders(server) == [*BROUGHT, *BROUGHT, "label 3"]
    server.asked.clear()
    sync.sync(toy_model(seed=8), 4, "d")
    assert orders(server) == [*BROUGHT, "label 4"]


def test_a_server_that_was_started_again_is_sent_marked_weights_again(tmp_path):
    server = FakeVllm()
    sync = sync_of(server, tmp_path / "shm")
    sync.sync(toy_model(seed=9), 3, "d")
    server.label, server.model = "default", toy_model()
    server.asked.clear()
    assert sync.sync(toy_model(seed=9), 4, "d").probe_gap < 1e-4
    assert orders(server) == [*BROUGHT, *BROUGHT, "label 4"]


def slightly_newer(model, lr=1e-6):
    """A copy as one update at a small rate leaves it."""
    newer = toy_model()
    newer.load_state_dict(model.state_dict())
    with torch.no_grad():
        for parameter in newer.parameters():
            parameter.add_(lr * torch.sign(torch.randn_like(parameter)))
    return newer


def test_at_a_tolerance_for_bfloat16_a_server_that_keeps_its_old_weights_is_found_out_all_the_same(tmp_path):
    server, old = FakeVllm(), toy_model()
    server.do_collective_rpc = lambda body: {"results": [None]}
    new = slightly_newer(old)
    wide = ServerSettings(5.0, tolerance=0.5)
    assert probe_gap(asked_of(server.client(), wide), new) < 0.01
    with pytest.raises(
        WeightSyncFailed, match="said it took marked weights and does not sample with them; it is paused"
    ):
        sync_of(server, tmp_path / "shm", wide).sync(new, 1, "d")
    assert server.is_paused and server.label == "unproven"


def test_at_that_tolerance_a_bfloat16_server_that_takes_its_weights_passes(tmp_path):
    server = FakeVllm()

    def reload(body):
        FakeVllm.do_collective_rpc(server, body)
        server.model.to(torch.bfloat16)
        return {"results": [None]}

    server.do_collective_rpc = reload
    synced = sync_of(server, tmp_path / "shm", ServerSettings(5.0, tolerance=0.5)).sync(toy_model(seed=9), 1, "d")
    assert 1e-3 < synced.probe_gap < 0.5 and split(server.label)[0] == 1


def test_marked_weights_are_other_weights_and_come_back_to_the_last_bit():
    model = toy_model()
    digest, before = weights_digest(model), own_logprobs(model, [3, 4, 5], [6, 7, 8])
    with marked(model):
        assert weights_digest(model) != digest
        assert np.abs(own_logprobs(model, [3, 4, 5], [6, 7, 8]) - before).max() > 0.5
    assert weights_digest(model) == digest


@pytest.mark.parametrize(
    "path", ["/collective_rpc", "/reset_prefix_cache", "/update_weight_version", "/resume", "/v1/completions"]
)
@pytest.mark.parametrize("how", [(500, "Worker failed with error 'size mismatch'"), httpx.ReadTimeout("")])
def test_an_update_that_fails_anywhere_raises_the_servers_words_and_leaves_no_version(tmp_path, path, how):
    server = FakeVllm()
    sync = sync_of(server, tmp_path / "shm")
    sync.sync(toy_model(), 2, "d")
    server.broken[path] = how
    words = (
        "no answer within 5 s" if isinstance(how, Exception) else "HTTP 500: Worker failed with error 'size mismatch'"
    )
    with pytest.raises(WeightSyncFailed, match=f"version 3: .*{path} at http://fake:1: {words}"):
        sync.sync(toy_model(seed=9), 3, "d")
    assert sync.version == 2 and server.is_paused
    assert split(server.label)[0] in (None, 2)
    assert not (tmp_path / "shm").exists()


def test_an_update_that_cannot_begin_leaves_the_server_as_it_was(tmp_path):
    server = FakeVllm()
    sync = sync_of(server, tmp_path / "shm")
    sync.sync(toy_model(), 2, "d")
    server.broken["/pause"] = (500, "busy")
    with pytest.raises(WeightSyncFailed, match="version 3: not begun: .*busy"):
        sync.sync(toy_model(seed=9), 3, "d")
    assert (split(server.label)[0], server.is_paused, sync.version) == (2, False, 2)


def test_a_server_that_takes_the_update_and_keeps_its_old_weights_is_found_out(tmp_path):
    server = FakeVllm()
    server.do_collective_rpc = lambda body: {"results": [None]}
    server.label, kept = "2/", sync_of(server, tmp_path / "shm")
    kept.version = 2
    with pytest.raises(WeightSyncFailed, match="nats from the trainer's, 0.001 are allowed; it is paused"):
        kept.sync(toy_model(seed=9), 3, "d")
    assert kept.version == 2 and server.is_paused and server.label == "unproven"


def test_a_server_that_kept_its_prefix_cache_is_not_up_to_date(tmp_path):
    server = FakeVllm()
    server.do_reset_prefix_cache = lambda body: {"success": False}
    with pytest.raises(WeightSyncFailed, match="kept its cache.*stays paused"):
        sync_of(server, tmp_path / "shm").sync(toy_model(seed=9), 3, "d")


def test_after_a_failed_update_the_next_one_brings_the_server_back(tmp_path):
    server = FakeVllm()
    sync = sync_of(server, tmp_path / "shm")
    server.broken["/collective_rpc"] = (500, "no")
    with pytest.raises(WeightSyncFailed):
        sync.sync(toy_model(seed=9), 3, "d")
    server.broken.clear()
    assert sync.sync(toy_model(seed=9), 3, "d").probe_gap < 1e-4
    assert (split(server.label)[0], server.is_paused, sync.version) == (3, False, 3)


def test_the_probe_is_sampled_at_the_temperature_of_the_run(tmp_path):
    server = FakeVllm("processed_logprobs")
    sync = sync_of(server, tmp_path / "shm", ServerSettings(5.0, temperature=0.5))
    sync.sync(toy_model(seed=9), 1, "d")
    assert {body["temperature"] for path, body in server.asked if path == "/v1/completions"} == {0.5}
    with pytest.raises(WeightSyncFailed, match="log-probabilities up to"):
        server.do_v1_completions = lambda body: FakeVllm.do_v1_completions(server, {**body, "temperature": 1.0})
        sync.sync(toy_model(seed=9), 2, "d")


def test_own_logprobs_are_those_of_the_whole_sequence():
    model = toy_model()
    with torch.no_grad():
        all_TV = model(input_ids=torch.tensor([[3, 4, 5, 6]])).logits[0].double().log_softmax(-1)
    expected = [float(all_TV[1, 5]), float(all_TV[2, 6])]
    np.testing.assert_allclose(own_logprobs(model, [3, 4], [5, 6], 1.0), expected, atol=1e-5)


def test_a_folder_holds_whole_versions_and_the_newest_few(tmp_path):
    sync, models = FolderSync(tmp_path, None, 2), {version: toy_model(seed=version) for version in range(4)}
    for version, model in models.items():
        assert sync.sync(model, version, weights_digest(model)).target == str(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["version-000002", "version-000003"]
    held = toy_model(seed=77)
    load_in_place(version_folder(tmp_path, 3), held)
    assert weights_digest(held) == weights_digest(models[3])
    with pytest.raises(BrokenCheckpoint, match="version-000000 holds no weights"):
        load_in_place(version_folder(tmp_path, 0), held)


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(WeightSyncFailed, match="version 1 could not be laid in"):
        FolderSync(tmp_path / "file", None, 2).sync(toy_model(), 1, "d")


class Sender:
    """What vLLM's trainer-side engine does, without a GPU."""

    def __init__(self, control, model):
        self.control, self.model = control, model

    def send_weights(self):
        self.control.start_weight_update()
        self.control.update_weights({"names": [name for name, _ in parameters_of(self.model)]})
        self.control.finish_weight_update()


def transferring_server(new):
    server = FakeVllm()
    for path in ("init_weight_transfer_engine", "start_weight_update", "update_weights"):
        setattr(server, f"do_{path}", lambda body: {"message": "ok"})

    def finish(body):
        server.model.load_state_dict(new.state_dict())
        return {"message": "ok"}

    server.do_finish_weight_update = finish
    return server


def join(control, model, address, port, world_size):
    control.init_weight_transfer_engine({"master_address": address, "master_port": port, "world_size": 1 + world_size})
    return Sender(control, model)


def test_over_nccl_the_server_joins_once_and_each_update_is_its_four_phases():
    new = toy_model(seed=9)
    server = transferring_server(new)
    sync = VllmSync(server.client(), SETTINGS, "vllm-nccl", NcclTransfer("10.0.0.1", 29_600, join))
    for version in (1, 2):
        assert sync.sync(new, version, "d").probe_gap < 1e-4
    phases = [path for path, _ in server.asked if "weight" in path and "version" not in path and "info" not in path]
    update = ["/start_weight_update", "/update_weights", "/finish_weight_update"]
    assert phases == ["/init_weight_transfer_engine", *update, *update, *update]
    init = next(body for path, body in server.asked if path == "/init_weight_transfer_engine")["init_info"]
    assert init == {"master_address": "10.0.0.1", "master_port": 29_600, "world_size": 2}


def test_a_transfer_that_hangs_ends_at_its_deadline_and_says_what_to_do():
    import threading

    release = threading.Event()

    class Hangs(Sender):
        def send_weights(self):
            release.wait(30)

    server = transferring_server(toy_model())
    transfer = NcclTransfer("10.0.0.1", 29_600, lambda control, model, *rest: Hangs(control, model))
    with pytest.raises(
        WeightSyncFailed, match="sending weights to http://fake:1 over NCCL: not done within 0.2 s; start"
    ):
        VllmSync(server.client(), ServerSettings(0.2), "vllm-nccl", transfer).sync(toy_model(), 1, "d")
    release.set()
    assert server.is_paused


def test_a_process_whose_transfer_hangs_ends_all_the_same():
    code = """
import threading
from trainer.rollouts.vllm_client import VllmError, split
from trainer.weights.transfer import within
try:
    within(0.2, "sending weights", threading.Event().wait)
except VllmError as error:
    raise SystemExit(str(error))
"""
    started_s = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and "sending weights: not done within 0.2 s" in done.stderr
    assert time.monotonic() - started_s < 50


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_work_that_fails_is_told_at_once_whatever_it_raises():
    from trainer.weights.transfer import within

    def fails(error):
        raise error

    for error, words in (
        (RuntimeError("NCCL"), "RuntimeError: NCCL"),
        (OSError("full"), "OSError: full"),
        (KeyError("x"), "broke off"),
    ):
        with pytest.raises(VllmError, match=f"sending: .*{words}"):
            within(30.0, "sending", lambda error=error: fails(error))
    assert within(30.0, "sending", lambda: 7) == 7


def test_a_refused_control_call_is_told_with_the_servers_words():
    server = transferring_server(toy_model())
    server.broken["/init_weight_transfer_engine"] = (500, "no weight transfer config")
    with pytest.raises(
        VllmError, match="/init_weight_transfer_engine at http://fake:1: HTTP 500: no weight transfer config"
    ):
        ServerControl(server.client(), 5.0).init_weight_transfer_engine({})


def test_a_serving_copy_has_a_head_of_its_own_and_is_the_same_model_to_whoever_reads_it(tmp_path):
    model = toy_model()
    write_serving_copy(model, tmp_path)
    read = type(model).from_pretrained(tmp_path).eval()
    assert not read.config.tie_word_embeddings and model.config.tie_word_embeddings
    assert read.lm_head.weight.data_ptr() != read.model.embed_tokens.weight.data_ptr()
    ids = torch.tensor([[1, 2, 3]])
    with torch.no_grad():
        assert torch.equal(read(input_ids=ids).logits, model(input_ids=ids).logits)
