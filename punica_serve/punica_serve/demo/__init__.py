"""The demo model: a tiny Llama that reads decimal integers, and adapters that write them in other notations."""
