"""The headline claims of the PACI paper (arXiv 2606.07881 v1), measured again and set beside its figures.

`published` has the paper's figures and what follows from them, `plan` what is measured, `measured` measures it,
`judged` puts both together. Losses come from exact replays, which is what real ranks would compute, bit for bit; times
come from real ranks on paced devices. Nothing is fitted to PACI's own published hours.
"""
