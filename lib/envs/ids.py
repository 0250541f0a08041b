"""What an environment's id alone says. Nothing is imported here, so that --help answers at once."""


def atari_name(env_id: str) -> str:
    """The id without `ale_py:`, behind which the emulator's own may stand; "" behind any other module."""
    module, colon, name = env_id.rpartition(":")
    return name if module == ("ale_py" if colon else "") else ""


def is_atari_id(env_id: str) -> bool:
    """Whether an id has the form of those Atari games whose frame skip is ours to set."""
    name = atari_name(env_id)
    return "NoFrameskip" in name or name.startswith("ALE/")
