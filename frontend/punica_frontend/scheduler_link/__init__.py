"""The link to the scheduler, and the live requests that it carries."""
