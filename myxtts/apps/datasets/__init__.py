"""Cuts long recordings at pauses into checked clips, with texts from subtitles, a transcript or a recognizer."""
