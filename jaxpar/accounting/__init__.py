"""What a program costs, counted: model FLOPs on paper, collectives and bytes in compiled text."""
