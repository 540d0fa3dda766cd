"""What is shown: reports and pages."""
