"""What Tessera's processes say to each other: names, the inventory of a node, the assignment of a pod.

Standard library only, and no behaviour: whoever reads or writes these objects imports them from here.
"""
