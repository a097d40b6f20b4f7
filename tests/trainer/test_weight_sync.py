"""Weights to a folder and to a vLLM server in memory: there and proven, or not there."""

import httpx
import numpy as np
import pytest
import torch

from tests.trainer.fake_vllm import FakeVllm
from tests.trainer.toys import toy_model
from trainer.checkpoint import BrokenCheckpoint
from trainer.held_weights import load_in_place
from trainer.serving_copy import write_serving_copy
from trainer.vllm_client import VllmError
from trainer.weight_sync import (
    FolderSync,
    ServerSettings,
    VllmSync,
    WeightSyncFailed,
    by_files,
    own_logprobs,
    probe_gap,
    version_folder,
)
from trainer.weight_transfer import NcclTransfer, ServerControl, parameters_of
from trainer.weights import weights_digest

SETTINGS = ServerSettings(deadline_s=5.0)


def sync_of(server, folder, settings=SETTINGS):
    return VllmSync(server.client(), settings, "vllm-files", by_files(folder))


def test_new_weights_are_proven_by_the_log_probabilities_of_a_probe_before_and_after(tmp_path):
    server, new = FakeVllm(), toy_model(seed=9)
    before = probe_gap(server.client(), new, SETTINGS)
    synced = sync_of(server, tmp_path / "shm").sync(new, 3, "d")
    assert before > 0.1 > synced.probe_gap and synced.probe_gap < 1e-4
    assert torch.equal(server.model.lm_head.weight, new.lm_head.weight)
    assert (server.label, server.is_paused, synced.target) == ("3", False, "http://fake:1")
    assert not (tmp_path / "shm").exists()


def test_the_server_is_paused_until_it_is_labelled_and_its_prefix_cache_is_forgotten(tmp_path):
    server = FakeVllm()
    sync_of(server, tmp_path / "shm").sync(toy_model(seed=9), 3, "d")
    paths = [path for path, _ in server.asked if path not in ("/v1/models", "/server_info")]
    assert paths == ["/pause", "/collective_rpc", "/reset_prefix_cache", "/update_weight_version", "/resume", "/v1/completions"]


@pytest.mark.parametrize("path", ["/collective_rpc", "/reset_prefix_cache", "/update_weight_version", "/resume", "/v1/completions"])
@pytest.mark.parametrize("how", [(500, "Worker failed with error 'size mismatch'"), httpx.ReadTimeout("")])
def test_an_update_that_fails_anywhere_raises_the_servers_words_and_leaves_no_version(tmp_path, path, how):
    server = FakeVllm()
    sync = sync_of(server, tmp_path / "shm")
    sync.sync(toy_model(), 2, "d")
    server.broken[path] = how
    words = "no answer within 5 s" if isinstance(how, Exception) else "HTTP 500: Worker failed with error 'size mismatch'"
    with pytest.raises(WeightSyncFailed, match=f"version 3: .*{path} at http://fake:1: {words}"):
        sync.sync(toy_model(seed=9), 3, "d")
    assert sync.version == 2 and server.is_paused
    assert server.label in ("unproven", "2")
    assert not (tmp_path / "shm").exists()


def test_an_update_that_cannot_begin_leaves_the_server_as_it_was(tmp_path):
    server = FakeVllm()
    sync = sync_of(server, tmp_path / "shm")
    sync.sync(toy_model(), 2, "d")
    server.broken["/pause"] = (500, "busy")
    with pytest.raises(WeightSyncFailed, match="version 3: not begun: .*busy"):
        sync.sync(toy_model(seed=9), 3, "d")
    assert (server.label, server.is_paused, sync.version) == ("2", False, 2)


def test_a_server_that_takes_the_update_and_keeps_its_old_weights_is_found_out(tmp_path):
    server = FakeVllm()
    server.do_collective_rpc = lambda body: {"results": [None]}
    sync = sync_of(server, tmp_path / "shm")
    with pytest.raises(WeightSyncFailed, match="nats from the trainer's, 0.001 are allowed; it is paused"):
        sync.sync(toy_model(seed=9), 3, "d")
    assert sync.version is None and server.is_paused and server.label == "unproven"


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
    assert (server.label, server.is_paused, sync.version) == ("3", False, 3)


def test_the_probe_is_sampled_at_the_temperature_of_the_run(tmp_path):
    server = FakeVllm("processed_logprobs")
    sync_of(server, tmp_path / "shm", ServerSettings(5.0, temperature=0.5)).sync(toy_model(seed=9), 1, "d")
    assert server.asked[-1][1]["temperature"] == 0.5
    with pytest.raises(WeightSyncFailed, match="log-probabilities up to"):
        server.do_v1_completions = lambda body: FakeVllm.do_v1_completions(server, {**body, "temperature": 1.0})
        sync_of(server, tmp_path / "shm", ServerSettings(5.0, temperature=0.5)).sync(toy_model(seed=9), 2, "d")


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
        server.model = new
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
    phases = [path for path, _ in server.asked if "weight" in path and "version" not in path]
    update = ["/start_weight_update", "/update_weights", "/finish_weight_update"]
    assert phases == ["/init_weight_transfer_engine", *update, *update]
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
    with pytest.raises(WeightSyncFailed, match="sending weights to http://fake:1 over NCCL: not done within 0.2 s; start"):
        VllmSync(server.client(), ServerSettings(0.2), "vllm-nccl", transfer).sync(toy_model(), 1, "d")
    release.set()
    assert server.is_paused


def test_a_refused_control_call_is_told_with_the_servers_words():
    server = transferring_server(toy_model())
    server.broken["/init_weight_transfer_engine"] = (500, "no weight transfer config")
    with pytest.raises(VllmError, match="/init_weight_transfer_engine at http://fake:1: HTTP 500: no weight transfer config"):
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
