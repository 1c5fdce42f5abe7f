"""Support for single trainers beyond DataLoader's interface; see docs/guides/frameworks.md."""
