"""Exports a reward model for text as a Hugging Face folder for other trainers: AutoModelForSequenceClassification."""

from __future__ import annotations

import copy
from pathlib import Path

import torch

from lib.cli import UserError
from lib.text.language import save_whole
from lib.text.lora import fold
from lib.text.reward import load_text_reward


def export_reward(path: Path, folder: Path) -> str:
    """Writes all layers of a reward model, and a score of the last token: its standardised reward, less a constant.

    Padding uses a token that ends no answer, because the score is at the last token before the padding.

    Returns:
      One line about the result.

    Raises:
      UserError: the file is no reward model for text, its reward is no score of one last token, or the folder is there
        already or cannot be written.
    """
    from transformers import AutoModelForSequenceClassification

    model = load_text_reward(path, torch.device("cpu"))
    member, shape, language = model.members[0], model.shape, model.language
    if len(model.members) > 1 or shape.pooling != "last" or model.slope:
        raise UserError(
            f"--export-reward {path}: expected one member that looks at the last token, without --length-control; "
            "fit it again with --pooling last, without --ensemble and --length-control"
        )
    if folder.exists():
        raise UserError(f"--export-reward {folder}: already exists; name a new folder")
    base, tokenizer = language.network.model, language.tokenizer
    fold(base)
    config = copy.deepcopy(base.config)
    config.num_hidden_layers, config.num_labels = shape.at + shape.upper, 1
    if getattr(config, "layer_types", None) is not None:
        config.layer_types = config.layer_types[: config.num_hidden_layers]
    config.pad_token_id = min(set(tokenizer.all_special_ids) - language.ends, default=None)
    network = AutoModelForSequenceClassification.from_config(config, dtype=torch.float32)
    layers = [*base.layers[: shape.at], *member.network.layers.layers]
    network.model.embed_tokens.load_state_dict(base.embed_tokens.state_dict())
    network.model.norm.load_state_dict(member.network.layers.norm.state_dict())
    for own, fitted in zip(network.model.layers, layers, strict=True):
        own.load_state_dict(fitted.state_dict())
    with torch.no_grad():
        network.score.weight.copy_(member.network.head.weight / member.std)
    if config.pad_token_id is not None:
        tokenizer.pad_token_id = config.pad_token_id
    try:
        save_whole(folder, network, tokenizer)
    except OSError as error:
        raise UserError(f"--export-reward {folder}: could not be written: {error.strerror}") from None
    return f"{folder}: {config.num_hidden_layers} layers and a score, for AutoModelForSequenceClassification"
