"""Which requests run in the next step, and where their KvCache pages are."""
