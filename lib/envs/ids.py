"""What an environment's id alone says. Imports nothing, so that --help answers at once."""

MAX_SEED = 2_000_000_000
"""Of the games: the emulator counts in 32 bits, from a seed on that evaluations and environments add to."""


def registered_name(env_id: str) -> str:
    """The id without the module that registers it, as environments themselves have it."""
    return env_id.rpartition(":")[2]


def same_environment(one: str, other: str) -> bool:
    """Whether two ids may name one environment, with or without the module that registers it; "" may be any."""
    return "" in (one, other) or registered_name(one) == registered_name(other)


def atari_name(env_id: str) -> str:
    """The id without `ale_py:`, behind which the emulator's own may stand; "" behind any other module."""
    module, colon, name = env_id.rpartition(":")
    return name if module == ("ale_py" if colon else "") else ""


def is_atari_id(env_id: str) -> bool:
    """Whether an id has the form of an Atari game that lets us set the frame skip."""
    name = atari_name(env_id)
    return "NoFrameskip" in name or name.startswith("ALE/")
