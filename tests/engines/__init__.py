"""ftrun under real engines, whose nodes are namespaces of this machine."""
