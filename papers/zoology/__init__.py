"""Zoology (Arora et al., 2023): BaseConv, what it computes and simulates, and layers that recall."""
