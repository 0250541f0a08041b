"""Segments of the original experiment: pickled lists of `lib.rlhf.EpisodeStep(obs, act)`, of any protocol and any NumPy."""

from typing import Any

import numpy as np

from lib.preferences.closed_pickle import Made, Refused, printable

NAMES = {
    *(("lib.rlhf", "EpisodeStep"), ("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")),
    *((module, name) for module in ("builtins", "__builtin__") for name in ("object", "tuple")),
    *((module, "_reconstructor") for module in ("copyreg", "copy_reg")),
    *(
        (f"numpy.{core}.multiarray", name)
        for core in ("core", "_core")
        for name in ("_reconstruct", "scalar")
    ),
    *((f"numpy.{core}.numeric", "_frombuffer") for core in ("core", "_core")),
}
"""What such a pickle may mention, module and name: its class, and how the protocols and NumPy 1 and 2 write arrays."""


def frame_and_action(step: object, number: int) -> tuple[np.ndarray, int]:
    """The content of one step.

    Args:
      step: an element of the list.
      number: of the step, for errors.

    Returns:
      The frame, uint8 and not checked further, over the bytes of the pickle where they are bytes there; the action.

    Raises:
      Refused: it is not such a step; hostile files may cause any other exception as well.
    """
    obs, act = _obs_and_act(step)
    frame, action = _frame(obs, number), _action(act)
    if type(action) is not int:
        raise Refused(f"action {number} must be int, is {type(action).__name__}")
    return frame, action


def _obs_and_act(step: object) -> tuple[object, object]:
    """The content of an EpisodeStep, whatever class that was and whichever protocol wrote it."""
    match step:
        case Made("EpisodeStep", given, state) | Made(
            "_reconstructor", (Made("EpisodeStep"), _, given), state
        ):
            match given if state is None else state:
                case {"obs": obs, "act": act} | (None, {"obs": obs, "act": act}) | (obs, act):
                    return obs, act
    raise Refused("not a list of lib.rlhf.EpisodeStep")


def _frame(obs: object, number: int) -> np.ndarray:
    """uint8 [H, W, 3], over the bytes of the pickle where it can be."""
    order: Any
    axes: list[Any]
    match obs:
        case Made("_reconstruct", _, (_, shape, dtype, fortran, raw)):
            order, axes = "F" if fortran else "C", []
        case Made("_frombuffer", (raw, dtype, shape, order, *axes)):
            pass
        case _:
            raise Refused(f"step {number} has no frame")
    if _dtype(dtype) != np.uint8:
        raise Refused("frames must be uint8")
    pixels = np.frombuffer(_bytes(raw), np.uint8)
    if order == "K":  # numpy 2.3 and later: in C order once the axes are put in this order
        return pixels.reshape(shape).transpose(*axes)
    return pixels.reshape(shape, order=order)


def _action(act: object) -> object:
    match act:
        case Made("scalar", (dtype, raw)):
            return np.frombuffer(_bytes(raw), _dtype(dtype)).item()
    return act


def _dtype(dtype: object) -> np.dtype:
    """That of frames or of an action: integers."""
    match dtype:
        case Made("dtype", (str(code), *_), (_, "|" | "<" | ">" | "=" as order, *_)):
            if code not in ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8"):
                raise Refused(f"refuses dtype {printable(code, 40)}")
            return np.dtype(order + code)
    raise Refused("array without a dtype")


def _bytes(raw: Any) -> Any:
    match raw:
        case Made("encode", (str(text), "latin1")):  # protocols 0 to 2
            return text.encode("latin1")
    return raw
