"""Access keys, tokens and the keyring of the results service."""
