import helper_trainer_dist as helper_trainer


class Longer(helper_trainer.Trainer):
    def train(self):
        for _ in range(2):
            super().train()
            self.waited = 0
        print(sum(p.sum().item() for p in self.model.parameters()))
