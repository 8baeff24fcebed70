"""The bundled model: a package of data files without code, described in `base/CARD.md`."""
