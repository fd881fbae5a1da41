"""The chapter's claims, each beside evidence that is computed anew: from runs, the models, a small input."""
