"""Scripts that run code of the real SGLang and FlashInfer; each prints one JSON object with what it saw.

They run in an interpreter with the published or the patched sources (see ``test_behaviour.py``), without a GPU:
where the code asks for the device, the script answers.
"""
