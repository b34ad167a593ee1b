"""The exercises, one file per lesson: `lesson_NN.py` with a function `exercises()`, called anew for every language."""
