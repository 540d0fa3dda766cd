"""The same comparisons made by Treehammer and by other tools."""
