"""The stored format as pure functions: values to bytes and back; never a file, a clock or a thread."""
