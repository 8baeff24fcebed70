"""The model in the box: data only; `CARD.md` says what it is."""
