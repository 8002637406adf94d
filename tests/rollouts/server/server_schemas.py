"""What vLLM and SGLang accept in a request for completions, and what they answer.

Names and types of fields, from `CompletionRequest` and `CompletionResponseChoice` in
  vLLM    vllm/entrypoints/openai/completion/protocol.py at commit 002032e
  SGLang  sglang/srt/entrypoints/openai/protocol.py of version 0.5.23
Only the fields that the project sends or reads are listed.
"""

IDS, NUMBER = list, (int, float)
REQUEST = {
    "vllm": {
        "model": str, "prompt": IDS, "n": int, "max_tokens": int, "min_tokens": int,
        "stop_token_ids": IDS, "temperature": NUMBER, "top_p": NUMBER, "top_k": int,
        "min_p": NUMBER, "repetition_penalty": NUMBER, "presence_penalty": NUMBER,
        "frequency_penalty": NUMBER, "seed": int, "logprobs": int, "return_token_ids": bool,
        "skip_special_tokens": bool, "stream": bool,
    },
    "sglang": {
        "model": str, "prompt": IDS, "n": int, "max_tokens": int, "min_tokens": int,
        "stop_token_ids": IDS, "temperature": NUMBER, "top_p": NUMBER, "top_k": int,
        "min_p": NUMBER, "repetition_penalty": NUMBER, "presence_penalty": NUMBER,
        "frequency_penalty": NUMBER, "seed": int, "logprobs": int, "return_token_ids": bool,
        "skip_special_tokens": bool, "stream": bool,
    },
}
# Of an answer's choice; SGLang leaves out what is not asked for.
CHOICE = {
    "vllm": {"index": int, "text": str, "logprobs": dict, "finish_reason": str,
             "stop_reason": (int, str, type(None)), "token_ids": IDS, "prompt_token_ids": IDS},
    "sglang": {"index": int, "text": str, "logprobs": dict, "finish_reason": str,
               "matched_stop": (int, str, type(None)), "token_ids": IDS, "prompt_token_ids": IDS},
}


def refuse(body: dict) -> str | None:
  """Why one of the two servers would not understand a request; None if both do."""
  for name, fields in REQUEST.items():
    for key, value in body.items():
      if key not in fields:
        return f"{name} has no field {key}"
      if not isinstance(value, fields[key]) or (fields[key] is int and isinstance(value, bool)):
        return f"{name}: {key} = {value!r} has the wrong type"
  if not body.get("prompt") or not all(isinstance(x, int) and x >= 0 for x in body["prompt"]):
    return "prompt is not a list of ids"
  return None
