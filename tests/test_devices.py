"""The device a flag names, what it is fast at, and its random generators."""

from __future__ import annotations

import pytest
import torch

from lib import devices
from lib.cli import UserError


@pytest.mark.parametrize("fast", [True, False])
def test_bf16_is_used_as_told_or_else_where_it_is_fast(monkeypatch: pytest.MonkeyPatch, fast: bool) -> None:
    monkeypatch.setattr(devices, "has_fast_bf16", lambda device: fast)
    assert [devices.resolve_bf16(flag, torch.device("cpu")) for flag in (True, False, None)] == [
        True,
        False,
        fast,
    ]


def test_resolve_device(monkeypatch: pytest.MonkeyPatch) -> None:
    assert devices.resolve_device("cpu") == torch.device("cpu")
    for name in ("", "tpu", "cuda:", "cuda:x", "cuda:-1", "CPU"):
        with pytest.raises(UserError, match="expected cpu, cuda or cuda:N"):
            devices.resolve_device(name)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(UserError) as refused:
        devices.resolve_device("cuda")
    assert str(refused.value) == (
        f"--dev cuda: this PyTorch sees no CUDA device (torch {torch.__version__}); "
        "install a CUDA build or use --dev cpu"
    )
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    with pytest.raises(UserError, match="check the driver with nvidia-smi or use --dev cpu"):
        devices.resolve_device("cuda:1")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert devices.resolve_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(UserError, match="--dev cuda:2: expected cuda:0 to cuda:1"):
        devices.resolve_device("cuda:2")
    assert devices.resolve_device("cuda") == torch.device("cuda")
    monkeypatch.setenv("LOCAL_RANK", "1")  # as torchrun sets it
    assert [devices.resolve_device(name) for name in ("cuda", "cuda:0")] == [
        torch.device("cuda:1"),
        torch.device("cuda:0"),
    ]
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(UserError, match="--dev cuda:2: expected cuda:0 to cuda:1"):
        devices.resolve_device("cuda")


def test_random_generators_go_on() -> None:
    cpu = torch.device("cpu")
    torch.manual_seed(3)
    state = devices.random_state(cpu)
    drawn = torch.rand(4)
    torch.manual_seed(9)
    devices.set_random_state(state, cpu)
    assert torch.equal(torch.rand(4), drawn)
