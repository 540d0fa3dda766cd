"""What runs inside a ROOT environment: it writes a tree from a spec, or measures one."""
