"""The same student under TRL's GRPOTrainer (checked against trl 1.16.0, transformers 5.24.0): the yardstick of
`benchmarks/job.py` and the oracle of the engine's loss test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import datasets
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast, PrinterCallback, Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging
from trl import GRPOConfig, GRPOTrainer

from trainwright.job.hyperparameters import Hyperparameters
from trainwright.students.nano import ALPHABET, END, PAD, NanoStudent

RewardFunction = Callable[[str, str], float]  # (prompt, reply)


def as_transformers(student: NanoStudent) -> Qwen3ForCausalLM:
    """Return transformers' own model with the student's weights."""
    # No padding token: its embedding would be left out of the gradient, though a student may sample it.
    model = Qwen3ForCausalLM(Qwen3Config(**student.config.as_qwen3(), eos_token_id=END))
    missing, unexpected = model.load_state_dict(student.state_dict(), strict=False)
    assert missing == ["lm_head.weight"], missing  # tied to the embedding
    assert not unexpected, unexpected
    model.tie_weights()
    return model


def as_tokenizer() -> PreTrainedTokenizerFast:
    """Return the student's tokenizer: one token a character, the end token after a prompt."""
    vocab = {"<pad>": PAD, "<end>": END} | {character: index for index, character in enumerate(ALPHABET, start=2)}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.post_processor = processors.TemplateProcessing(single="$A <end>", special_tokens=[("<end>", END)])
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<end>", padding_side="left"
    )


def build_trainer(
    student: NanoStudent,
    prompts: Sequence[str],
    reward: RewardFunction,
    hyperparameters: Hyperparameters,
    folder: Path,
    seed: int = 0,
) -> GRPOTrainer:
    """Return a GRPOTrainer that does what the torch engine does with rank 0, and nothing besides: one update a batch,
    no logging, no saving, no data workers, no KL term, no gradient checkpointing."""
    hp = hyperparameters
    logging.set_verbosity_error()
    config = GRPOConfig(
        output_dir=str(folder),
        use_cpu=True,
        bf16=False,
        seed=seed,
        max_steps=hp.max_steps,
        per_device_train_batch_size=hp.batch_size,
        num_generations=hp.group_size,
        max_completion_length=hp.max_completion_tokens,
        temperature=hp.temperature,
        learning_rate=hp.learning_rate,
        weight_decay=hp.weight_decay,
        max_grad_norm=hp.max_grad_norm,
        lr_scheduler_type="constant",
        scale_rewards="group" if hp.advantage == "mean_std" else "none",
        loss_type="dapo",
        beta=0.0,
        gradient_checkpointing=False,
        shuffle_dataset=False,
        dataloader_num_workers=0,
        dataloader_pin_memory=False,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = GRPOTrainer(
        model=as_transformers(student),
        reward_funcs=lambda prompts, completions, **_: [
            reward(prompt, completion) for prompt, completion in zip(prompts, completions, strict=True)
        ],
        args=config,
        train_dataset=datasets.Dataset.from_dict({"prompt": list(prompts)}),
        processing_class=as_tokenizer(),
    )
    trainer.remove_callback(PrinterCallback)
    return trainer
