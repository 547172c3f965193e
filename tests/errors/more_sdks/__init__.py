"""Further SDKs: what an expert decided about their errors beforehand, and how `classify` reads them."""
