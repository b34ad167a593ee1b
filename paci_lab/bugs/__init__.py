"""Eight small training loops with a real-world fault each, for lesson 09: `lesson` shows them, `catalogue` lists them.

Nothing is imported here: the process in which two ranks block each other (`ranks`) starts in a moment without torch.
"""
