"""The bundled model: data only; `CARD.md` says what it is."""
