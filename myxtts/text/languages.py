"""The languages MyXTTS speaks: codes, vocabulary tags and text length limits.

Seventeen languages are those of XTTS v2 (Casanova et al. 2024, "XTTS: a Massively Multilingual Zero-Shot
Text-to-Speech Model", section 3); Persian and Amharic are added here.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Language:
    """One language the text front end can read aloud."""

    code: str
    """ISO 639-1 code, `zh` for Mandarin."""

    name: str
    """English name."""

    char_limit: int
    """Longest text, in characters, that is spoken in one go; longer text is split (`sentences.split_text`)."""

    @property
    def tag(self) -> str:
        """The vocabulary entry that starts every text of the language, such as `[en]`; `[zh-cn]` for Mandarin."""
        return "[zh-cn]" if self.code == "zh" else f"[{self.code}]"


# The limits of the XTTS languages are the reference's. Those of Persian and Amharic are chosen for the same duration
# of speech, some 17 s: Persian leaves out short vowels as Arabic does, an Amharic letter is a whole syllable.
LANGUAGES = {
    language.code: language
    for language in (
        Language("en", "English", 250),
        Language("es", "Spanish", 239),
        Language("fr", "French", 273),
        Language("de", "German", 253),
        Language("it", "Italian", 213),
        Language("pt", "Portuguese", 203),
        Language("pl", "Polish", 224),
        Language("tr", "Turkish", 226),
        Language("ru", "Russian", 182),
        Language("nl", "Dutch", 251),
        Language("cs", "Czech", 186),
        Language("ar", "Arabic", 166),
        Language("zh", "Chinese", 82),
        Language("hu", "Hungarian", 224),
        Language("ko", "Korean", 95),
        Language("ja", "Japanese", 71),
        Language("hi", "Hindi", 150),
        Language("fa", "Persian", 166),
        Language("am", "Amharic", 120),
    )
}


def get_language(code: str) -> Language:
    """Looks a language up by its code; a region is ignored (`en-GB`, `zh-cn`, `pt_BR`), and so is case.

    Args:
        code: Language code such as `"en"`.

    Returns:
        The `Language`.

    Raises:
        ValueError: The language is not among the supported ones, which the message lists.
    """
    language = LANGUAGES.get(code.strip().replace("_", "-").split("-")[0].lower())
    if language is None:
        raise ValueError(f"Language {code!r} is not supported. Supported languages: {', '.join(sorted(LANGUAGES))}.")
    return language
