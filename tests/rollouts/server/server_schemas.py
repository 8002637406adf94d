"""What vLLM and SGLang accept in a request for completions.

Names and types of fields, from `CompletionRequest` in
  vLLM    vllm/entrypoints/openai/completion/protocol.py at commit 002032e
  SGLang  sglang/srt/entrypoints/openai/protocol.py of version 0.5.23
Only the fields that the project sends are listed.
"""

IDS, NUMBER = list, (int, float)
REQUEST = {  # of both
    "model": str, "prompt": IDS, "n": int, "max_tokens": int, "min_tokens": int,
    "stop_token_ids": IDS, "temperature": NUMBER, "top_p": NUMBER, "top_k": int,
    "min_p": NUMBER, "repetition_penalty": NUMBER, "presence_penalty": NUMBER,
    "frequency_penalty": NUMBER, "seed": int, "logprobs": int, "return_token_ids": bool,
    "skip_special_tokens": bool, "stream": bool,
}


def refuse(body: dict) -> str | None:
  """Why the two servers would not understand a request; None if they do."""
  for key, value in body.items():
    if key not in REQUEST:
      return f"there is no field {key}"
    if not isinstance(value, REQUEST[key]) or (REQUEST[key] is int and isinstance(value, bool)):
      return f"{key} = {value!r} has the wrong type"
  if not body.get("prompt") or not all(isinstance(x, int) and x >= 0 for x in body["prompt"]):
    return "prompt is not a list of ids"
  return None
