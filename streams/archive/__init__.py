"""The log as files: segments, their index, the archiver that writes them, the journals of producers."""
