"""Tests of trials over several nodes: how processes start, which trials are refused, and failures on another node."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from labkit.errors import UserError
from tests.faulty.campaign import listed_for
from tests.several_nodes import Beside
from tests.workbook.conftest import Measured
from workbook.ranks import Team
from workbook.records import Record
from workbook.runner.nodes import equality as alike
from workbook.runner.nodes import network
from workbook.runner.nodes.allocation import Nodes, nodes_here, too_few_nodes
from workbook.runner.nodes.network import interface_of, interfaces_for, network_of, why_not_over
from workbook.trials.trial import Trial
from workbook.words import configuration_name

OVER_TWO = Trial(devices=8, nodes=2)
# The environment of a Slurm batch step.
FIRST_OF_TWO = {"SLURM_JOB_NUM_NODES": "2", "SLURM_NODEID": "0", "SLURMD_NODENAME": "n1"}


# ---- the trial ------------------------------------------------------------------------------------------------------


def test_devices_counts_the_devices_of_all_nodes() -> None:
    assert (OVER_TWO.devices_of_node, OVER_TWO.processes, OVER_TWO.batch_of_step) == (4, 8, 8 * 64)
    assert Trial(devices=8).devices_of_node == 8
    with pytest.raises(UserError, match="3 devices can't be shared by 2 nodes evenly"):
        Trial(devices=3, nodes=2)
    with pytest.raises(UserError, match="nodes must be at least 1"):
        Trial(nodes=0)


def test_a_network_needs_two_nodes_and_a_known_name() -> None:
    with pytest.raises(UserError, match="'ethernet' connects nodes"):
        Trial(devices=2, network="ethernet")
    with pytest.raises(UserError, match="unknown trial network"):
        Trial(devices=2, nodes=2, network="token ring")


def test_a_label_gives_the_number_of_nodes() -> None:
    alone = Trial(devices=8)
    assert configuration_name(OVER_TWO, beside=[alone, OVER_TWO]).endswith(", 2 nodes")
    assert "node" not in configuration_name(alone, beside=[alone, OVER_TWO]), "a label leaves out the default"


# ---- the nodes of a job ---------------------------------------------------------------------------------------------


@pytest.fixture
def _srun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a program `srun`."""
    program = tmp_path / "bin" / "srun"
    program.parent.mkdir()
    program.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(program.parent))


@pytest.mark.usefixtures("_srun")
def test_a_jobs_nodes_are_used_only_from_its_first_node(monkeypatch: pytest.MonkeyPatch) -> None:
    assert nodes_here(FIRST_OF_TWO) == Nodes(2)
    assert nodes_here({}) == Nodes()
    assert nodes_here(FIRST_OF_TWO | {"SLURM_JOB_NUM_NODES": "1"}) == Nodes()
    assert nodes_here(FIRST_OF_TWO | {"SLURM_NODEID": "1"}) == Nodes()
    assert nodes_here({"SLURM_JOB_NUM_NODES": "2"}) == Nodes(), "an allocation seen from a login node"
    monkeypatch.setenv("PATH", "/nowhere")
    assert nodes_here(FIRST_OF_TWO) == Nodes(), "without srun nothing can start a process on the other node"


def test_a_step_runs_a_task_per_node_beside_the_jobs_own_task() -> None:
    command, launcher = Nodes(4).command(2, 8), [sys.executable, "-m", "workbook.runner.nodes.launcher"]
    assert command[0] == "srun"
    assert {"--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--relative=0", "--overlap", "--input=0"} < set(command)
    port = int(command[-2])
    assert port and command[-6:] == [*launcher, "2", str(port), "4"], "four of eight ranks on each node"
    assert Nodes(4).command(1, 8) == [*launcher, "1", "0", "8"], "one node needs no srun, and takes a free port"


@pytest.mark.usefixtures("_torch_is_here")
def test_torchrun_uses_the_first_node_as_rendezvous_and_numbers_the_ranks_by_node() -> None:
    from workbook.runner.nodes.launcher import launch_config

    for node in (0, 1):
        config = launch_config(2, node, "10.0.0.1:29400", 4)
        assert (config.min_nodes, config.max_nodes, config.nproc_per_node) == (2, 2, 4)
        assert (config.rdzv_endpoint, config.rdzv_configs["rank"]) == ("10.0.0.1:29400", node)
        assert config.max_restarts == 0, "a restart would need another job"


def test_too_few_nodes_are_refused_with_the_command_to_run() -> None:
    assert too_few_nodes(OVER_TWO, Nodes(2)) is None
    reason = too_few_nodes(OVER_TWO, Nodes())
    assert reason is not None and "there is one of 2: `make report ON=slurm HW=... NODES=2`" in reason


# ---- the network between them ---------------------------------------------------------------------------------------


def test_nccl_uses_only_the_named_network() -> None:
    def settings(name: str) -> dict[str, str]:
        return network_of(replace(OVER_TWO, network=name))

    assert settings("any") == {}
    assert settings("ethernet") == {"NCCL_IB_DISABLE": "1", "NCCL_NET": "Socket"}
    assert settings("infiniband") == {"NCCL_IB_DISABLE": "0", "NCCL_NET": "IB"}
    both = network_of(replace(OVER_TWO, network="ethernet", interconnect="host"))
    assert both["NCCL_P2P_DISABLE"] == both["NCCL_IB_DISABLE"] == "1"


def test_nccl_uses_only_the_named_interconnect() -> None:
    """NCCL may otherwise use InfiniBand for sockets, or a network card that is nearer to two GPUs than each other."""
    on_two = Trial(devices=2)
    assert network_of(on_two) == {}
    sockets = network_of(replace(on_two, interconnect="sockets"))
    assert sockets["NCCL_NET"] == "Socket" and sockets["NCCL_P2P_DISABLE"] == sockets["NCCL_SHM_DISABLE"] == "1"
    host = network_of(replace(on_two, interconnect="host"))
    assert host["NCCL_NET_DISABLE_INTRA"] == "1" and "NCCL_SHM_DISABLE" not in host


def port(folder: Path, *, state: str, link: str) -> None:
    made = folder / "mlx5_0" / "ports" / "1"
    made.mkdir(parents=True, exist_ok=True)
    (made / "state").write_text(f"{state}\n")
    (made / "link_layer").write_text(f"{link}\n")


@pytest.mark.parametrize(
    ("state", "link", "fine"),
    [("4: ACTIVE", "InfiniBand", True), ("1: DOWN", "InfiniBand", False), ("4: ACTIVE", "Ethernet", False)],
)
def test_infiniband_needs_an_active_infiniband_port(tmp_path: Path, state: str, link: str, *, fine: bool) -> None:
    trial = replace(OVER_TWO, network="infiniband")
    assert "no active port" in (why_not_over(trial, infiniband=tmp_path) or "")
    port(tmp_path, state=state, link=link)
    assert (why_not_over(trial, infiniband=tmp_path) is None) == fine
    assert "Gloo" in (why_not_over(replace(trial, device="cpu"), infiniband=tmp_path) or "")
    assert why_not_over(OVER_TWO, infiniband=tmp_path / "none") is None, "network `any` needs no port"


@pytest.mark.parametrize(
    ("wanted", "fine"), [("", True), ("=eth0", True), ("eth", True), ("^ib", True), ("=ib0", False), ("ib", False)]
)
def test_ip_over_infiniband_is_not_ethernet(tmp_path: Path, wanted: str, *, fine: bool) -> None:
    for name, kind in (("eth0", "1"), ("ib0", "32")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "type").write_text(f"{kind}\n")
    trial = replace(OVER_TWO, network="ethernet")
    reason = why_not_over(trial, interfaces=tmp_path, given={"NCCL_SOCKET_IFNAME": wanted})
    assert (reason is None) == fine and (fine or "set NCCL_SOCKET_IFNAME" in (reason or ""))


def test_libraries_use_the_interface_of_the_runners_address_unless_it_is_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert interface_of("127.0.0.1") == "lo" and interface_of("203.0.113.1") is None
    monkeypatch.setattr(network, "interface_of", {"10.0.0.1": "eth1"}.get)
    assert interfaces_for("10.0.0.1", {}) == {"GLOO_SOCKET_IFNAME": "eth1", "NCCL_SOCKET_IFNAME": "=eth1"}
    assert interfaces_for("10.0.0.1", {"NCCL_SOCKET_IFNAME": "ens"}) == {"GLOO_SOCKET_IFNAME": "eth1"}
    assert interfaces_for("10.0.0.2", {}) == {}


# ---- nodes that differ ----------------------------------------------------------------------------------------------

NODE_0 = {"devices": "8 x NVIDIA H200", "PyTorch": "2.13.0", "labkit's code": "a"}


@pytest.mark.parametrize(
    ("name", "other"), [("devices", "8 x NVIDIA H100"), ("PyTorch", "2.12.0"), ("labkit's code", "b")]
)
def test_differing_nodes_are_refused(name: str, other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Told(Team):
        def gather(self, value: object) -> list[Any]:
            return [("0", NODE_0), ("0", NODE_0), ("1", NODE_0 | {name: other}), ("1", NODE_0 | {name: other})]

    monkeypatch.setattr(alike, "describe", lambda _: NODE_0)
    monkeypatch.setenv("GROUP_RANK", "0")
    trial = Trial(devices=4, nodes=2)
    reason = alike.why_not_over_nodes(trial, Told(0, 4, None, None))
    assert reason is not None and f"the nodes differ in {name}: {NODE_0[name]} on the first, {other} on" in reason
    assert alike.difference({"0": NODE_0, "1": NODE_0}) is None
    told_otherwise = alike.why_not_over_nodes(replace(trial, devices=3, nodes=3), Told(0, 4, None, None))
    assert "asks for 3 nodes, and its processes are on 2" in (told_otherwise or "")


def test_a_node_describes_itself() -> None:
    pytest.importorskip("torch")
    description = alike.describe("cpu")
    assert set(description) == set(NODE_0) and all(description.values())


# ---- two nodes that are both this machine ---------------------------------------------------------------------------


def over_two(workload: str = "together", *, size: int = 0, **fields: Any) -> Trial:
    about = {"device": "cpu", "data": "none", "devices": 2, "nodes": 2, "size": size, **fields}
    return Trial(workload=f"tests.faulty.{workload}", **about)


@pytest.fixture(scope="module")
def _torch_is_here() -> None:
    pytest.importorskip("torch")


BOTH, ALONE, KILLED = over_two("together_where"), over_two(devices=1, nodes=1), over_two("together_kill", size=2)


@pytest.fixture(scope="module")
def beside(_torch_is_here: None, measured: Measured) -> dict[str, Record]:
    """Return the records of a pass by key. The killed trial runs last, because later trials would need new ranks."""
    return measured(listed_for([ALONE, BOTH, KILLED]), nodes=Beside())


def test_trials_run_on_both_nodes_and_on_a_single_node(beside: dict[str, Record]) -> None:
    both, alone = beside[BOTH.key], beside[ALONE.key]
    assert both.status == alone.status == "ok"
    facts = both.facts
    assert (facts["ranks"], facts["sum"], facts["telemetry_of"]) == (2, 3.0, "the first of 2 nodes")
    assert [node for node, _ in facts["nodes"]] == ["0", "1"] and facts["interface"] == "lo"
    assert "telemetry_of" not in alone.facts
    assert both.process.id != alone.process.id


def test_a_rank_that_is_killed_on_another_node_is_named(beside: dict[str, Record]) -> None:
    killed = beside[KILLED.key]
    assert (killed.status, killed.reason) == ("crashed", "rank 1 of 2: it was killed by signal 9 (SIGKILL)")


@pytest.mark.usefixtures("_torch_is_here")
def test_the_store_of_a_single_node_listens_only_on_the_loopback_interface() -> None:
    from workbook.runner.group import GroupStore

    store = GroupStore("127.0.0.1", 0, serves=True)
    listening = [c.laddr.ip for c in psutil.Process().net_connections("tcp") if c.laddr.port == store.port]
    assert "127.0.0.1" in listening and not {"0.0.0.0", "::"} & set(listening)
    GroupStore("127.0.0.1", store.port).put("job", {"trials": []})
    assert store.get("job") == {"trials": []}
