"""What the programs share: flags, files in the workdir, the terminal."""
