"""What single trainers need beyond a loader that behaves like DataLoader; docs/frameworks.md."""
