"""The ``profile.pop`` file: schema, codec, reader, writer, integrity."""
