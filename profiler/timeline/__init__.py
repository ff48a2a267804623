"""What runs when and what is live when: traces, schedules, liveness."""
