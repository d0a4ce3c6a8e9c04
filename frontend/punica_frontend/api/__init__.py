"""The parts of the API that all other rooms use: errors, callers, schemas, and how routes describe their answers."""
