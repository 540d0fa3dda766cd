"""Other load generators as engines: fio for paths, oha for HTTP, xrdreplay for root."""
