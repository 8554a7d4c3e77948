"""Lightning's Trainer with its own loop: validation, early stopping, the best models."""

import argparse
import os

import lightning
import moment
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset


class Line(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.batches = 0
        self.net = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)
        )

    def training_step(self, batch, index):
        moment.at(f"train {self.global_step}")
        self.batches += 1
        x, y = batch
        loss = torch.nn.functional.mse_loss(self.net(x), y)
        self.log("loss", loss, sync_dist=True)
        return loss

    def validation_step(self, batch, index):
        moment.at(f"evaluation {self.current_epoch}")
        x, y = batch
        self.log("score", torch.nn.functional.mse_loss(self.net(x), y), sync_dist=True)

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), 1e-2)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 40, 0.5)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--accum", type=int, default=1)
    options = parser.parse_args()
    torch.manual_seed(0)
    x = torch.randn(384, 8)
    data = TensorDataset(x, x @ torch.randn(8, 1))
    best = ModelCheckpoint(dirpath="best", monitor="score", save_top_k=2)
    stop = EarlyStopping(monitor="score", patience=50)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=int(os.environ["WORLD_SIZE"]),
        strategy="ddp",
        max_epochs=12,
        enable_progress_bar=False,
        logger=False,
        log_every_n_steps=5,
        callbacks=[best, stop],
        accumulate_grad_batches=options.accum,
    )
    model = Line()
    trainer.fit(model, DataLoader(data, 8, shuffle=True), DataLoader(data, 32))
    moment.at("the end")
    moment.end(
        {"model": model},
        {
            "best": str(best.best_model_score),
            "models": sorted(best.best_k_models),
            "waited": stop.wait_count,
        },
        batches=model.batches,
        global_step=trainer.global_step,
        epoch=trainer.current_epoch,
        lr=trainer.optimizers[0].param_groups[0]["lr"],
    )


if __name__ == "__main__":
    main()
