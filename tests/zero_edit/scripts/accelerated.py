"""A loop on accelerate, with accumulated gradients."""

import moment
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset


def main():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    torch.manual_seed(0)
    x = torch.randn(384, 8)
    y = x @ torch.randn(8, 1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 20, 0.5)
    loader = DataLoader(TensorDataset(x, y), 8, shuffle=True)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    steps = 0
    for epoch in range(24):  # noqa: B007 - reported at the end
        for inputs, targets in loader:
            moment.at(f"train {steps}")
            with accelerator.accumulate(model):
                loss = torch.nn.functional.mse_loss(model(inputs), targets)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            steps += 1
    moment.at("the end")
    moment.end(
        {"model": accelerator.unwrap_model(model)},
        steps=steps,
        epoch=epoch,
        lr=schedule.get_last_lr(),
    )


if __name__ == "__main__":
    main()
