"""What an environment's id alone says. Nothing is imported here, so that --help answers at once."""


def is_atari_id(env_id: str) -> bool:
    """Whether an id, also one behind `module:`, has the form of those Atari games whose frame skip is ours to set."""
    name = env_id.rpartition(":")[2]
    return "NoFrameskip" in name or name.startswith("ALE/")
