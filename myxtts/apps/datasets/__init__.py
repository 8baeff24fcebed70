"""Training sets from long recordings: cuts in pauses, text from subtitles, transcripts or a recognizer, and checks."""
