"""Hugging Face's Trainer, with its own loop: a small GPT-2."""

import argparse

import moment
import torch
from transformers import (
    EarlyStoppingCallback,
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)


class Numbers(torch.utils.data.Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        numbers = torch.randint(0, 64, (16,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": numbers, "labels": numbers}


class Moments(TrainerCallback):
    def __init__(self):
        self.steps = 0

    def on_step_end(self, args, state, control, **kwargs):
        self.steps += 1
        moment.at(f"train {state.global_step}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--accum", type=int, default=1)
    options = parser.parse_args()
    torch.manual_seed(0)
    size = {"vocab_size": 64, "n_positions": 16, "n_embd": 32, "n_layer": 2, "n_head": 2}
    model = GPT2LMHeadModel(GPT2Config(**size))
    arguments = TrainingArguments(
        "out",
        num_train_epochs=20,
        per_device_train_batch_size=8,
        logging_steps=5,
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=2,
        metric_for_best_model="loss",
        lr_scheduler_type="cosine",
        warmup_steps=4,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        gradient_accumulation_steps=options.accum,
    )
    moments, stop = Moments(), EarlyStoppingCallback(early_stopping_patience=50)
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=Numbers(192),
        eval_dataset=Numbers(32),
        callbacks=[moments, stop],
    )
    trainer.train()
    moment.at("the end")
    schedule = trainer.lr_scheduler
    moment.end(
        {"model": model},
        {
            "best": trainer.state.best_model_checkpoint,
            "waited": stop.early_stopping_patience_counter,
            "logged": len(trainer.state.log_history),
        },
        steps=moments.steps,
        global_step=trainer.state.global_step,
        epoch=trainer.state.epoch,
        lr=schedule.get_last_lr(),
        last=schedule.last_epoch,
    )


if __name__ == "__main__":
    main()
