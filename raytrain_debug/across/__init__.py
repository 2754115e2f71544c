"""All ranks of a job at once: asking them, merging what they answer, and what it means. Knows no terminal."""
