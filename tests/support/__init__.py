"""What tests share: broker process, wire client, transcript player, on-disk format readers."""
