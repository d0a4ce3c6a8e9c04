"""CPU processes that compute the LoRA of a cold request's prefill while its adapter travels (CaraServe, section 4)."""
