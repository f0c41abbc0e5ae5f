"""Lower bounds: experiments on what no model of a kind can compute."""
