"""What the processes of a job did during some steps, on one clock: recorded, joined, and read again."""
