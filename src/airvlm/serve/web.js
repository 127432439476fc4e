() => {
  // gradio leaves the alt texts of its own images empty
  const describe = () => {
    for (const img of document.querySelectorAll("#image img:not([alt]), #image img[alt='']")) {
      img.alt = "The image that is asked about";
    }
  };
  new MutationObserver(describe).observe(document.body, { childList: true, subtree: true });
  describe();
  // on a narrow screen the answers may lie below the edge
  document.addEventListener("click", (event) => {
    if (event.target.closest("#ask")) {
      document.querySelector("#answers")?.scrollIntoView({ block: "nearest", behavior: "smooth" });
    }
  });
}
